"""Run commands on nodes, by the first route that works: local, ssh, a step in a job, or a job of its own."""
