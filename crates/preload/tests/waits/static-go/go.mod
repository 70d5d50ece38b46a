module writes
go 1.22
