"""The formats of deep learning frameworks: ONNX, TensorFlow, Keras, Flax, TFLite, OpenVINO, CTranslate2, llama2.c."""
