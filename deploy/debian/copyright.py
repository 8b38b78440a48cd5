"""The copyright file of the package: our licence, and those of all that is within.

copyright.py LICENSE FOLDER
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

APACHE = re.compile(
    r"^ *Apache License\s+Version 2\.0,.*?or\s+additional\s+liability\.(\s+END OF TERMS AND CONDITIONS)?$",
    re.DOTALL | re.MULTILINE,
)
ON_DEBIAN = "Apache License, Version 2.0: see /usr/share/common-licenses/Apache-2.0"
ours, folder = Path(sys.argv[1]), sys.argv[2]
print(f"Titanic\n\n{ours.read_text().strip()}")
for found in sorted(distributions(path=[folder]), key=lambda one: one.name.lower()):
    if found.name == "titanic-queue":
        continue
    about = found.metadata
    licence = about.get("License-Expression") or about.get("License") or ""
    classified = [one.rpartition(" :: ")[2] for one in about.get_all("Classifier", []) if one.startswith("License")]
    print(
        f"\n\n{'-' * 72}\n{found.name} {found.version}: {licence.splitlines()[0] if licence else ', '.join(classified)}"
    )
    print(about.get("Home-page") or ", ".join(about.get_all("Project-URL", [])) or "")
    for file in found.files or ():
        if any(word in file.name.upper() for word in ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS")):
            path = Path(str(found.locate_file(file)))
            if path.is_file() and path.suffix != ".py":
                print(f"\n{APACHE.sub(ON_DEBIAN, path.read_text(errors='replace')).strip()}")
