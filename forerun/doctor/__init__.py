"""What stands in the way of a fast text on this device, found out before anybody complains.

finding   what a check says
machine   Python, packages, processor, disk
places    token file, the API's address, the daemon
draft     the draft's file, and what a child process says of it
child     that process: loads the draft, times it, and lets the target write with it
link      each verifier: name, connection, certificate, answer, round trips
broker    what the fleet's broker allows
outlook   what to expect of all this, by the simulator
examine   all of them, in order
"""
