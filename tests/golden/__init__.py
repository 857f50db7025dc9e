"""What must stay as it is while the code is moved and renamed: `python -m tests.golden compare`.

The records say nothing of names, places or words in the code: no class, module, error text or help text is in
them. Where the behaviour is meant to change, `python -m tests.golden record` writes them anew, and the change
of the files shows what is different.

They were made on Linux on x86-64 with AVX2. On other processors the last digits of logarithms
differ, and some worlds with them.
"""
