"""Finds what slows or prevents texts on this device.

device    findings; packages, processor, token file, the API's address, the daemon
draft     the draft's file, its pace, its tokens, and texts with it
link      each verifier: connection, certificate, answer, round trips
examine   all checks in order, and the speed-up that a formula predicts
"""
