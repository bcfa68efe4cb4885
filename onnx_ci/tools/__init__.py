"""The tools: what ``pytest --onnx-export`` never imports. Each is a room with its commands; the gate imports none of them."""
