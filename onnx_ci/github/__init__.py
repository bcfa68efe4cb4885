"""The GitHub Action: ``action.yml`` starts :mod:`onnx_ci.github.action`, and whatever the action decides is decided here."""
