module traps
go 1.22
