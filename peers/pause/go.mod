module bootbridge/peers/pause

go 1.24
