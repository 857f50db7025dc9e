"""The device's mind, sans-IO: the session, its growth policies and the words it speaks with a drafter."""
