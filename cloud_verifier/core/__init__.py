"""The server's mind, sans-IO: the scheduler, its sessions and the words it speaks with an engine."""
