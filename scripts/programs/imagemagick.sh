# needs: convert identify
PATH=/usr/bin:$PATH
convert -size 640x480 gradient:red-blue -rotate 30 -blur 0x3 a.png
convert a.png -resize 50% -colorspace gray b.jpg
convert a.png b.jpg -append c.gif
montage a.png b.jpg -geometry 100x100 d.png
for f in a.png b.jpg c.gif d.png; do identify -format '%m %w %h %#\n' $f; done
