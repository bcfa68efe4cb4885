"""Whole models."""
