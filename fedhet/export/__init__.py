"""A client's model outside any run: exported, as ONNX, classifying images."""
