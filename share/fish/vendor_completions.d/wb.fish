wb completion fish | source
