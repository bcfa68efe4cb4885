"""What is installed here: versions, what packages can do, and git.

In come names and files; out come facts about them. None of the packages is imported in this process.
"""
