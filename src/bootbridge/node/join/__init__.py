"""Every further node.

Finds a join service, asks for a ticket, joins; rejoins after a reboot; renews certificates.
"""
