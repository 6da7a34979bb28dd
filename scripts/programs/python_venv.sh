# needs: /usr/bin/python3 /usr/lib/python3/dist-packages/pip /usr/lib/python3.11/ensurepip
cat >wheel.py <<'END'
import zipfile
with zipfile.ZipFile("tiny-1.0-py3-none-any.whl", "w") as z:
    z.writestr("tiny/__init__.py", "def main():\n    print('tiny runs')\n")
    z.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    z.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("tiny-1.0.dist-info/entry_points.txt", "[console_scripts]\ntiny = tiny:main\n")
    z.writestr("tiny-1.0.dist-info/RECORD", "tiny/__init__.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/entry_points.txt,,\ntiny-1.0.dist-info/RECORD,,\n")
END
/usr/bin/python3 wheel.py
/usr/bin/python3 -m venv v
v/bin/pip install --no-index --disable-pip-version-check ./tiny-1.0-py3-none-any.whl
v/bin/tiny
v/bin/pip list --disable-pip-version-check --no-index
v/bin/pip uninstall -y tiny | tail -1
