# A trainer that fails twice after its only checkpoint, until a file says that it is repaired.
first=$(cat "$1/saved" 2>/dev/null || echo 0)
for step in $(seq $((first + 1)) 12); do
    echo " iteration $step/ 60 | lm loss: 2.0E+00 |"
    if [ "$step" = 10 ] && [ "$first" = 0 ]; then echo 10 >"$1/saved"; exit 1; fi
done
if [ -e "$1/repaired" ]; then sleep 60; fi
echo "Traceback (most recent call last):"
echo "KeyError: 'image'"
exit 1
