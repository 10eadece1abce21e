"""Engine configurations, one YAML file per device class; found with `importlib.resources.files("gpu_configs")`."""
