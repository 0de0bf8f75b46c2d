"""A server of one environment family over the OpenEnv protocol (https://github.com/meta-pytorch/OpenEnv)."""
