"""The one-way lock between init and join, and the records that survive a crash or a reboot."""
