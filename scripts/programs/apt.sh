# needs: debootstrap
# root: debian
export DEBIAN_FRONTEND=noninteractive SOURCE_DATE_EPOCH=1700000000 # the same bytes each time
mkdir -p /srv/p/DEBIAN /srv/p/usr/bin /srv/p/etc
cat >/srv/p/DEBIAN/control <<'END'
Package: demo
Version: 1.0
Architecture: all
Maintainer: demo <demo@localhost>
Description: demo
END
echo /etc/demo.conf >/srv/p/DEBIAN/conffiles
echo 'setting=1' >/srv/p/etc/demo.conf
printf '#!/bin/sh\nuseradd --system demo && echo "postinst $1"\n' >/srv/p/DEBIAN/postinst
printf '#!/bin/sh\necho installed and running\n' >/srv/p/usr/bin/demo
chmod 755 /srv/p/DEBIAN/postinst /srv/p/usr/bin/demo
dpkg-deb --root-owner-group --build /srv/p /srv/demo_1.0_all.deb
apt-get install -y -o Dpkg::Use-Pty=0 /srv/demo_1.0_all.deb 2>&1 | grep -v -e '^debconf' -e 'N: Download is performed'
demo
dpkg -s demo | grep -e Status -e Version
dpkg -L demo
dpkg --verify demo && getent passwd demo | cut -d: -f1
apt-get purge -y -o Dpkg::Use-Pty=0 demo 2>&1 | tail -2
ls /etc/demo.conf 2>&1 || true
