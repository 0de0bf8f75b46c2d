"""OSWorld's tasks on a machine behind the HTTP control server of OSWorld's virtual machines."""
