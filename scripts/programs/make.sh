# needs: make gcc
for i in $(seq 1 30); do echo "int f$i(void) { return $i; }" >f$i.c; done
{ for i in $(seq 1 30); do echo "int f$i(void);"; done
  echo '#include <stdio.h>'
  echo 'int main(void) { int s = 0;'
  for i in $(seq 1 30); do echo "s += f$i();"; done
  echo 'printf("%d\n", s); return 0; }'; } >main.c
cat >Makefile <<'END'
objects := $(patsubst %.c,%.o,$(wildcard *.c))
all: $(objects)
	$(CC) -o $@ $^
%.o: %.c
	$(CC) -O1 -c $< -o $@
.PHONY: check
check: all
	./all
END
make -j2 check | sort
make -s check
touch f3.c && make
make -q && echo up to date
