"""Steps 3 to 7, in order: prepare, export, contract, run, compare. Each is a package; none imports a later one."""
