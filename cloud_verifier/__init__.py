"""The server side: a target model that decides, and the scheduler that shares it among sessions."""
