"""Runs two commands at once: `beside.py FIRST SECOND`.

The first one has what the second leaves of the processors, and says what it has to say when it is
done. Fails if either does.
"""

import os
import signal
import subprocess
import sys
import threading


def tell(command: subprocess.Popen) -> None:
    said, _ = command.communicate()
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()


def main(first: str, second: str) -> int:
    quiet = subprocess.Popen(
        ["nice", "-n", "19", "sh", "-c", first],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # So that all it has started can be ended.
        start_new_session=True,
    )
    teller = threading.Thread(target=tell, args=(quiet,))
    teller.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = subprocess.run(["sh", "-c", second], check=False).returncode
        teller.join()
    except KeyboardInterrupt:
        os.killpg(quiet.pid, signal.SIGTERM)
        teller.join()
        return 130
    return code or quiet.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
