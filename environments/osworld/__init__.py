"""OSWorld's tasks on a machine that is driven over the HTTP control server inside OSWorld's virtual machines."""
