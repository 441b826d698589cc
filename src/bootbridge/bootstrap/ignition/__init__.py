"""Adds the rendered files to a bootstrap.ign and removes them again, byte for byte."""
