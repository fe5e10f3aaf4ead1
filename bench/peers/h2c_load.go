// Unary calls in the shape of gRPC over HTTP/2 with prior knowledge, faster than grpcio makes and answers them: a client and an app.
//
// Usage: h2c_load app LISTEN                           answers each call with its own message and trailers
//        h2c_load calls ADDRESS AT_ONCE SECONDS        prints calls a second and the milliseconds of the median and of the 99th percentile
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"
)

func main() {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	if os.Args[1] == "app" {
		server := &http.Server{Addr: os.Args[2], Handler: http.HandlerFunc(answer), Protocols: protocols}
		log.Fatal(server.ListenAndServe())
	}
	atOnce, _ := strconv.Atoi(os.Args[3])
	seconds, _ := strconv.ParseFloat(os.Args[4], 64)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	took := make([][]float64, atOnce)
	var group sync.WaitGroup
	for index := range atOnce {
		group.Go(func() {
			for began := time.Now(); began.Before(until); began = time.Now() {
				call(client, os.Args[2])
				took[index] = append(took[index], float64(time.Since(began).Microseconds())/1000)
			}
		})
	}
	group.Wait()
	var all []float64
	for _, one := range took {
		all = append(all, one...)
	}
	sort.Float64s(all)
	fmt.Println(float64(len(all))/seconds, all[len(all)/2], all[len(all)*99/100])
}

func answer(writer http.ResponseWriter, request *http.Request) {
	message, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	head := writer.Header()
	head.Set("Content-Type", "application/grpc")
	head.Set("Trailer", "Grpc-Status")
	writer.WriteHeader(http.StatusOK)
	writer.Write(message)
	writer.(http.Flusher).Flush()
	head.Set("Grpc-Status", "0")
}

func call(client *http.Client, address string) {
	message := make([]byte, 105)
	request, err := http.NewRequest("POST", "http://"+address+"/serving.samples.Echo/Say", bytes.NewReader(message))
	if err != nil {
		log.Fatal(err)
	}
	request.ContentLength = -1
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || len(body) != len(message) || response.Trailer.Get("Grpc-Status") != "0" {
		log.Fatal("a call failed: ", err, len(body), response.Trailer)
	}
}
