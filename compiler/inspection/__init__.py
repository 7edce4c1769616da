"""What is in an artifact and how it does: two of them held against each other, layers that part, a page about one."""
