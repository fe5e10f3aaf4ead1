// The origin of echo.py, by net/http of Go.
package main

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
)

func main() {
	err := http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			// A body that it does not accept is refused.
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		read, _ := json.Marshal([]string{r.Method, r.RequestURI, hex.EncodeToString(body)})
		w.Header().Set("X-Echo", hex.EncodeToString(read))
		w.Header().Set("Content-Length", "0")
	}))
	panic(err)
}
