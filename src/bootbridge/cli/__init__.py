"""The commands: flags become options, options become one call.

`main` lists the commands of `bootbridge` and loads each on use; `command` declares a command or a group;
`server` and `agent` are the entry points of the two proxy programs, which load nothing else from here.
"""
