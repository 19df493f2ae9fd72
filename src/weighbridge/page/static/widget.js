// The front end of the notebook widget: the page in a frame that reaches nothing, and its messages carried to the kernel.

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = model.get("title");
  Object.assign(frame.style, { width: "100%", height: `${model.get("height")}px`, border: "1px solid #8884", borderRadius: "8px" });
  frame.srcdoc = model.get("page");
  const up = ({ source, data }) => source === frame.contentWindow && model.send(data);
  const down = (message) => frame.contentWindow?.postMessage(message, "*");
  addEventListener("message", up);
  model.on("msg:custom", down);
  el.append(frame);
  return () => {
    removeEventListener("message", up);
    model.off("msg:custom", down);
  };
}

export default { render };
