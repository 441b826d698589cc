"""The commands: flags become options, options become one call.

`main` lists the commands of `bootbridge` and loads each when it is used; `command` declares a command or group;
`server` and `agent` are the entry points of the two proxy programs, which load nothing else from here.
"""
