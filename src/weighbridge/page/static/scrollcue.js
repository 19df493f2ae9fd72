// The cue of a row that scrolls sideways: on which sides there is more of it.
import { useEffect, useState } from "./vendor/htm-preact.js";

/** `before`, `after`, both or "", as the element of `box` is scrolled. */
export function useScrollCue(box) {
  const [cue, setCue] = useState("");
  useEffect(() => {
    const row = box.current;
    const read = () => setCue([row.scrollLeft > 4 && "before", row.scrollLeft + row.clientWidth < row.scrollWidth - 4 && "after"].filter(Boolean).join(" "));
    const observer = new ResizeObserver(read);
    observer.observe(row);
    row.addEventListener("scroll", read, { passive: true });
    return () => (observer.disconnect(), row.removeEventListener("scroll", read));
  }, []);
  return cue;
}
