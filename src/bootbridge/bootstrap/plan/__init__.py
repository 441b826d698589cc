"""Decides every name, port, path and option of one installation, once.

`install_config` reads the installer's input, `plan` decides options and names, `ports` the ports, `paths` the
paths; `record` stores the decision as JSON. Runs in the `bootbridge` command.
"""
