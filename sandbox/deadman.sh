# Waits for a word from the sandbox. "done" ends it; silence (end of file) means the sandbox was killed, and then everything that
# carries its mark goes too. $1 is the sandbox's id, $2 its temporary directory, if it has one.
trap '' INT TERM HUP
if read -r _; then exit 0; fi
for round in 1 2 3; do
  for p in /proc/[0-9]*; do
    if tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -qxF "PITCREW_SANDBOX=$1"; then
      kill -KILL "${p#/proc/}" 2>/dev/null
    fi
  done
  sleep 0.1
done
if [ -n "$2" ]; then rm -rf -- "$2"; fi
