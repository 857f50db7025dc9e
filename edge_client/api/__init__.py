"""The local API: OpenAI's shapes over HTTP, on the loopback interface or a unix socket."""
