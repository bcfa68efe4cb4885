"""What is installed on this machine: versions, capabilities of packages, git. None of the packages is imported here.

Any later package may import it.
"""
