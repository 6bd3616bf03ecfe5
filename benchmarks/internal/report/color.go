package report

import "image/color"

var barColor = color.RGBA{R: 0x33, G: 0x67, B: 0x91, A: 0xff}
