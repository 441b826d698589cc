"""Completion scripts and man pages, generated from the declarations of the commands.

specification   all commands with their flags and arguments, as values
bash, zsh, fish a completion script for each shell; static, so that a TAB starts no Python
man             a man page for each command
"""
