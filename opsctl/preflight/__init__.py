"""Every mistake that is known to have cost a queue slot, looked for before it costs one."""
