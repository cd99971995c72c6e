set -eux
exchange() {
  mv $PACKAGES/opsctl $PACKAGES/away
  mv $PACKAGES/other $PACKAGES/opsctl
  mv $PACKAGES/away $PACKAGES/other
}
await() { until opsctl logs long 2>/dev/null | grep -q "iteration $1[0-9][0-9][0-9]/"; do sleep 0.3; done; }
look() {
  opsctl status long --json >$1.status.json
  opsctl report long --json >$1.report.json
  [ $1 = 1 ] || opsctl why long --json >$1.why.json
}
opsctl launch train.toml
await 1
exchange
look 1
touch $RUN/end-1
await 2
exchange
look 2
touch $RUN/end-2
await 3
look 3
opsctl cancel long
