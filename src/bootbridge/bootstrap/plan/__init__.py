"""The plan: every name, port, path and option of one installation, decided once.

`install_config` reads what OpenShift's installer was given, `plan` decides, `record` stores the decision as
JSON.
"""
