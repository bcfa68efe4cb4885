"""A program that is run once in, recipes for the models that it calls out: ``onnx-ci init --observe``."""
