"""The names of the attention backends; in a file of their own, because options are parsed without torch."""

ATTENTIONS = ("auto", "torch_ref", "triton")
