"""Installs the tunnel on a running node (`up`), reports on it (`status`) and removes it (`down`).

`resources/` is one ordered list: `up` applies it forwards, `down` removes it backwards. `install_record`
notes what is about to be created, `receipt` what was removed.
"""
