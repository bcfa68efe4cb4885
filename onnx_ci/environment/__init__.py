"""What is installed here: versions, what packages can do, which files belong to libraries; other versions; and git.

In come names and files; out come facts about them, and folders with other versions. None of the packages is imported in this
process.
"""
